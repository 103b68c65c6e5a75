# SPDX-License-Identifier: BSD-2-Clause
"""Traces five desktop programs with Valgrind, for the study of page sizes.

python3 docs/examples/pagesize-programs.py DIR

DIR gets NAME.lackey.zst for each of game, office, photo, pdf and multimedia: the kinds of programs
of Park and Bahn (IEEE Access 9, 2021), in the form that runs without a screen. What the programs
work on is made here, always the same. Needs Debian's valgrind, zstd, freecell-solver-bin, vim,
graphicsmagick, poppler-utils and vorbis-tools, and Python's matplotlib.
"""

import argparse
import contextlib
import random
import shutil
import subprocess
import sys
import wave
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure

PROGRAMS = {
    "game": ["fc-solve", "board"],
    "office": ["vim", "-u", "NONE", "-es", "-c", "%s/the/THE/g|sort|wq! out", "text"],
    "photo": ["gm", "convert", "photo.png", "-resize", "50%", "s.png"],
    "pdf": ["pdftoppm", "-r", "20", "-l", "1", "document.pdf", "page"],
    "multimedia": ["oggdec", "-Q", "-o", "sound.wav", "sound.ogg"],
}


def make_inputs() -> None:
    board = subprocess.run(["make-microsoft-freecell-board", "24"], capture_output=True, check=True)
    Path("board").write_bytes(board.stdout)

    rng = random.Random(1)
    words = ["the", "page", "of", "memory", "table", "and", "storage", "reads", "faults", "a"]
    lines = [" ".join(rng.choices(words, k=10)) for _ in range(1000)]
    Path("text").write_text("\n".join(lines) + "\n")

    x, y = np.meshgrid(np.linspace(0, 9, 160), np.linspace(0, 7, 120))
    picture = np.sin(x) * np.cos(y) + 0.1 * np.random.default_rng(1).normal(size=x.shape)
    matplotlib.image.imsave("photo.png", picture)
    with PdfPages("document.pdf") as pages:
        for page in range(3):
            figure = Figure()
            figure.add_subplot().plot(picture[page])
            figure.text(0.1, 0.02, "\n".join(lines[40 * page : 40 * page + 40]), fontsize=4)
            pages.savefig(figure)

    times = np.arange(22050) / 22050
    sound = (8000 * (np.sin(2764 * times) + np.sin(4141 * times * times))).astype("<i2")
    with wave.open("sound.in.wav", "wb") as file:
        file.setparams((1, 2, 22050, 0, "NONE", ""))
        file.writeframes(sound.tobytes())
    subprocess.run(["oggenc", "-Q", "-o", "sound.ogg", "sound.in.wav"], check=True)


def trace(name: str) -> None:
    command = PROGRAMS[name]
    valgrind = ["valgrind", "--tool=lackey", "--trace-mem=yes", "--log-fd=9", "--", *command]
    # What the program says goes nowhere, what Valgrind says to the compressor.
    script = 'exec 9> >(zstd -q -f -o "$0"); "$@" >/dev/null 2>&1; status=$?; exec 9>&-; wait'
    done = subprocess.run(
        ["bash", "-c", f"{script}; exit $status", f"{name}.lackey.zst", *valgrind],
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{command[0]} ended with {done.returncode}")


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("directory", metavar="DIR", type=Path)
    parser.add_argument("programs", metavar="NAME", nargs="*", default=list(PROGRAMS))
    arguments = parser.parse_args()
    needed = [
        "valgrind",
        "zstd",
        "oggenc",
        "make-microsoft-freecell-board",
        *(command[0] for command in PROGRAMS.values()),
    ]
    if missing := [program for program in needed if not shutil.which(program)]:
        sys.exit(f"there is no {', '.join(missing)}")
    arguments.directory.mkdir(parents=True, exist_ok=True)
    with contextlib.chdir(arguments.directory):
        make_inputs()
        for name in arguments.programs:
            trace(name)
            print(name, Path(f"{name}.lackey.zst").stat().st_size, flush=True)


if __name__ == "__main__":
    main()

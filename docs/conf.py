# SPDX-License-Identifier: BSD-2-Clause
"""The documentation as a site. `make docs` builds it; a warning fails the build."""

import re
from importlib.metadata import version as version_of
from pathlib import Path

from jupyter_client.manager import KernelManager
from sphinx.application import Sphinx
from sphinx.util.logging import getLogger

DOCS = Path(__file__).parent

project = "ptat"
copyright = "the authors of ptat"
version = release = version_of("ptat")

extensions = ["myst_nb", "sphinx_argparse_cli", "sphinx.ext.autodoc"]
smartquotes = False  # -- is an option, no dash
exclude_patterns = ["_build/[!g]*", "notebooks/session"]
html_theme = "furo"
html_title = "ptat"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_extra_path = ["_build/generated/extra"]
html_copy_source = False
highlight_language = "none"  # blocks without a language are what a terminal shows
default_role = "py:obj"  # `name` in a docstring is a link where it is one of ours, else code
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
myst_heading_anchors = 4  # the anchors that Git forges give headings
myst_enable_extensions = ["attrs_inline", "html_image"]

# Notebooks are kept without outputs: what is shown is what they print today.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 600  # CI's machine may be busy
KernelManager.transport_encryption.default_value = "auto"  # others may be on this machine
nb_ipywidgets_js: dict[str, object] = {}  # no scripts of others from the network

_logger = getLogger(__name__)
_LINK = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[^)#]*)\)")


def _links_into_the_repository(_app: Sphinx, name: str, source: list[str]) -> None:
    """Files outside of docs/ are not part of the site: they are named, and must exist."""
    page = DOCS / name

    def named(link: re.Match[str]) -> str:
        text, target = link.groups()
        file = (page.parent / target).resolve()
        if file.is_relative_to(DOCS):
            return link[0]
        if not file.exists():
            _logger.warning("there is no %s", target, location=name)
        return f"{text} (`{file.relative_to(DOCS.parent)}`)"

    source[0] = _LINK.sub(named, source[0])


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _links_into_the_repository)

# SPDX-License-Identifier: BSD-2-Clause
"""Compiled code of earlier runs, and of others at the same time."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys

import numba
import pytest

from ptat_parser.compiled import cache as compiled_cache
from ptat_parser.compiled.cache import Cache, CacheFile

KEY = ("types", "machine", "bytecode")


@pytest.fixture
def cache(tmp_path):
    return lambda stamp="stamp": CacheFile(tmp_path, "function-1.py311", stamp)


def test_two_that_compile_at_once_read_their_own_or_none(cache, monkeypatch):
    keys = [("A", *KEY), ("B", *KEY)]
    with monkeypatch.context() as patch:
        patch.setattr(CacheFile, "_load_index", lambda self: {})  # neither has seen the other
        for key in keys:
            cache().save(key, f"code of {key[0]}")
    found = [cache().load(key) for key in keys]
    assert found == [None, "code of B"]
    cache().save(keys[0], "code of A")
    assert [cache().load(key) for key in keys] == ["code of A", "code of B"]


def test_killed_between_code_and_index(cache, monkeypatch):
    cache("old").save(KEY, "old code")
    with monkeypatch.context() as patch:
        for name in ("_save_data", "_save_index"):
            whole = getattr(CacheFile, name)

            def killed(self, *arguments, whole=whole):
                whole(self, *arguments)
                raise KeyboardInterrupt

            patch.setattr(CacheFile, name, killed)
            with pytest.raises(KeyboardInterrupt):
                cache("new").save(KEY, "new code")
            assert cache("new").load(KEY) in (None, "new code")
            assert cache("old").load(KEY) is None


def test_numba_s_own_names_the_wrong_code(tmp_path, monkeypatch):
    """Once it does not, ours is not needed for that."""
    own = numba.core.caching.IndexDataCacheFile
    with monkeypatch.context() as patch:
        patch.setattr(own, "_load_index", lambda self: {})
        for key in ("A", "B"):
            own(tmp_path, "function-1.py311", "stamp").save((key, *KEY), f"code of {key}")
            index = {("A", *KEY): "function-1.py311.1.nbc"}
    own(tmp_path, "function-1.py311", "stamp")._save_index(index)
    assert own(tmp_path, "function-1.py311", "stamp").load(("A", *KEY)) == "code of B"


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
@pytest.mark.parametrize("size", [0, 1, 10, -1])
def test_cut_off(cache, tmp_path, suffix, size):
    cache().save(KEY, "code")
    (path,) = tmp_path.glob(f"*.{suffix}")
    os.truncate(path, size if size >= 0 else path.stat().st_size - 1)
    assert cache().load(KEY) is None
    cache().save(KEY, "code")
    assert cache().load(KEY) == "code"


def test_a_full_disk_costs_compiling_again(cache, monkeypatch):
    def full(self, *arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CacheFile, "_save_data", full)
    cache().save(KEY, "code")
    assert cache().load(KEY) is None


def test_code_of_another_source_goes(cache, tmp_path):
    cache("old").save(KEY, "old code")
    cache("old").save(("B", *KEY), "old code, too")
    assert len(list(tmp_path.glob("*.nbc"))) == 2
    cache("new").save(KEY, "new code")
    assert len(list(tmp_path.glob("*.nbc"))) == 1


CONSTANT = "VALUE = {}\n"
FUNCTION = """
import numba
import constant
from ptat_parser.compiled.cache import cached

@numba.njit
def function():
    return constant.VALUE

cached(function)
"""


def test_a_constant_of_another_module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "function.py").write_text(FUNCTION)
    found = []
    for value in (1, 1, 2):
        (tmp_path / "constant.py").write_text(CONSTANT.format(value))
        for name in ("constant", "function"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        compiled_cache.sources.cache_clear()
        spec = importlib.util.spec_from_file_location("function", tmp_path / "function.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "function", module)
        spec.loader.exec_module(module)
        result = module.function()
        found.append((result, sum(module.function.stats.cache_hits.values())))
    assert found == [(1, 0), (1, 1), (2, 0)]


def test_nowhere_to_keep_it(monkeypatch):
    def nowhere(self, function):
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(Cache, "__init__", nowhere)

    @numba.njit
    def one():
        return 1

    compiled_cache.cached(one)
    assert one() == 1

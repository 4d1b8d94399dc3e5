"""The static screen: refuses what reaches for the test run, keeps honest changes, reads source as CPython does."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from woodshed.grading.install.grader import needless
from woodshed.grading.pytest_screen import elsewhere, screen
from woodshed.tasks.languages.python import delete_body, function_spans

BEFORE = b"import sys\n\n\ndef area(w, h):\n    return w + h\n"
GOLD = b"import sys\n\n\ndef area(w, h):\n    return w * h\n"
ATTACKS = {
    "pytest import": "import _pytest.runner",
    "pytest by name": "import importlib\nimportlib.import_module('_pytest.python').Function",
    "pytest by an alias of the import": "load = __import__\nload('_pytest')",
    "loaded pytest": "sys.modules['_pytest.reports'].TestReport",
    "loaded pytest, from sys": "from sys import modules as m\nm.get('pytest').Function",
    "inside pytest": "import pytest\npytest.Function.runtest = None",
    "a pytest value": "import pytest as p\nX = p.approx(0, abs=1e300)",
    "plugin import": "import pytest_asyncio.plugin",
    "plugin of a library": "from anyio import pytest_plugin\nimport anyio.pytest_plugin",
    "from unittest": "from unittest.mock import ANY",
    "from unittest by another name": "import unittest.mock as u\ny = u.ANY",
    "unittest changed": "import unittest\nunittest.TestCase.assertEqual = None",
    "unittest changed by setattr": "from unittest import TestCase as T\nsetattr(T, 'assertEqual', None)",
    "is pytest there": "'pytest' in sys.modules",
    "gc": "import gc\ngc.get_objects()",
    "gc by another name": "from gc import get_objects as g\ng()",
    "gc by getattr": "import gc\nf = getattr(gc, 'get_objects')",
    "caller locals": "x = sys._getframe(1).f_locals['want']",
    "caller locals by inspect": "import inspect as i\nf = i.currentframe().f_back\nx = f.f_locals.get('expected')",
    "caller locals by stack": "from inspect import stack\nx = stack()[1].frame.f_locals['want']",
    "caller locals by a list of names": "f = sys._getframe(1)\nx = [f.f_locals.get(k) for k in ('want', 'expected')]",
    "caller after the own frame": "f = sys._getframe(0)\nf = f.f_back\nf = sys._getframe(0)\nx = f.f_locals['want']",
    "caller by a made name": "x = getattr(sys._getframe(1), 'f_' + 'locals')",
    "always equal": "class A:\n    def __eq__(self, other):\n        return True",
    "never unequal": "class A(int):\n    __ne__ = lambda self, other: not True",
    "equal, made by type": "A = type('A', (), {'__eq__': lambda *a: True})",
    "equal, set later": "setattr(str, '__eq__', lambda a, b: 1)",
    "equal after a note": "class A:\n    def __eq__(self, other):\n        seen.append(other)\n        return True",
    "equal by many negations": f"class A:\n    def __eq__(self, other):\n        return {'not ' * 1500}True",
    "of every type": "class M(type):\n    def __instancecheck__(cls, other):\n        return True",
    "environment": "import os\nos.environ.get('PYTEST_CURRENT_TEST')",
    "recorder": "import builtins\nbuiltins.woodshed_seen = print\nwoodshed_seen(1)",
    "memory": "open('/proc/self/mem', 'rb')",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_are_refused(attack: str) -> None:
    submitted = GOLD + b"\n\n" + ATTACKS[attack].encode() + b"\n"
    assert screen({"m.py": submitted}, {"m.py": BEFORE}, {"m.py": GOLD})
    assert not screen({"m.py": submitted}, {"m.py": BEFORE}, {"m.py": submitted})  # the solution does it too


@pytest.mark.parametrize("code", [b"x = x.a()\n" * 20_000, b"x = x['a']\n" * 20_000])
def test_names_bound_thousands_of_times_are_refused_early(code: bytes) -> None:
    """Every read looks at all bindings; a file of the largest size that crosses would take an hour."""
    assert screen({"m.py": code}) == ["m.py: binds its names too often to be read"]
    assert needless({"m.py": code}) == ["m.py: binds its names too often to be read"]


def test_names_bound_to_their_own_parts_are_read_once() -> None:
    """With a search that begins again at every binding, twelve of them would take half an hour."""
    steps = "".join(f"    if name == {n}:\n        node = node.part[{n}]\n" for n in range(200))
    code = f"def walk(node, name):\n{steps}    return getattr(node, name), node.f_locals['want']\n"
    assert not screen({"m.py": code.encode()}, {"m.py": BEFORE}, {"m.py": GOLD})
    caller = code.replace("node.part[7]", "node.f_back").encode()
    assert screen({"m.py": caller}, {"m.py": BEFORE}, {"m.py": GOLD})


STYLES = {
    "stack of numpy": "import numpy as np\nx = np.stack([1])",
    "own stack": "class A:\n    stack = ()\n    def last(self):\n        return self.stack[-1]",
    "a parameter named like a module": "def f(gc, pytest):\n    return gc.get_objects(), pytest.Function",
    "value type": "class P:\n    def __eq__(self, other):\n        return isinstance(other, P) and self.x == other.x",
    "value type in steps": "class P:\n    def __eq__(self, o):\n        if type(o) is P:\n            return True\n"
    "        return NotImplemented",
    "ordered": "from functools import total_ordering\n@total_ordering\nclass P:\n"
    "    def __lt__(self, o):\n        return self.x < o.x\n    def __eq__(self, o):\n        return self.x == o.x",
    "never equal": "class N:\n    def __eq__(self, other):\n        return False",
    "regular expressions": "from re import compile\nx = compile('a')",
    "signal handlers": "import signal\nsignal.signal(signal.SIGTERM, lambda *a: sys.exit(1))",
    "main guard": "if __name__ == '__main__':\n    raise SystemExit(area(1, 2))",
    "exit of a command": "def main():\n    sys.exit(2)",
    "match": "def f(x):\n    match x:\n        case {'a': [1, *rest]} | rest:\n            return rest",
    "walrus": "def f(xs):\n    return [y for x in xs if (y := x + 1) > 2]",
    "async": "import asyncio\nasync def f(xs):\n    async with x as y:\n        return [z async for z in y]",
    "decorator": "import functools\ndef d(f):\n    @functools.wraps(f)\n    def g(*a, **k):\n"
    "        return f(*a, **k)\n    return g",
    "dataclass": "from dataclasses import dataclass\n@dataclass(eq=True, order=True)\nclass P:\n    x: int = 0",
    "context manager": "from contextlib import contextmanager\n@contextmanager\ndef f():\n    yield 1",
    "attributes": "class A:\n    def __getattr__(self, n):\n        return getattr(self.inner, n)\n"
    "    def __getattribute__(self, n):\n        return super().__getattribute__(n)",
    "metaclass": "class M(type):\n    def __instancecheck__(cls, x):\n        return hasattr(x, 'a')\n"
    "    def __new__(m, n, b, d):\n        return super().__new__(m, n, b, d)",
    "subprocess": "import subprocess\nx = subprocess.run(['git', 'log'], capture_output=True)",
    "threading": "import threading, multiprocessing\nt = threading.Thread(target=area)",
    "logging": "import logging\nlogging.getLogger(__name__).debug(sys._getframe(1).f_code.co_name)",
    "module of the caller": "def f():\n    return sys._getframe(1).f_globals.get('__name__')",
    "variables of its own": "def f():\n    return sys._getframe().f_locals['x']",
    "own record named f_locals": "def f(r):\n    return r.f_locals['want']",
    "code made at run time": "def f(s):\n    d = {}\n    exec(compile(s, '<made>', 'exec'), d)\n    return d",
    "ctypes": "import ctypes, atexit, gc\nx = ctypes.windll\natexit.register(gc.collect)\ngc.disable()",
    "subclasses": "def f(c):\n    return c.__subclasses__(), f.__code__.co_argcount, f.__closure__",
    "loaded modules": "x = sys.modules[__name__]\ny = sys.modules.get('json')\nz = 'json' in sys.modules",
    "test helpers": "import pytest, unittest\ndef test():\n    return pytest.main(['--pyargs', 'm'])\n"
    "class T(unittest.TestCase):\n    def setUp(self):\n        with pytest.raises(ValueError):\n            area(1)",
    "plugins of its own": "import pluggy\nhook = pluggy.HookspecMarker('m')\npm = pluggy.PluginManager('m')",
    "mock": "from unittest import mock\nx = mock.Mock()",
    "prose": "def f():\n    '''PYTEST_CURRENT_TEST'''",
    "a rebound name": "def f():\n    import pytest\n    pytest = None\n    return pytest",
}


@pytest.mark.parametrize("style", STYLES)
def test_styles_of_honest_code_pass(style: str) -> None:
    assert screen({"m.py": GOLD + b"\n\n" + STYLES[style].encode() + b"\n"}, {"m.py": BEFORE}, {"m.py": GOLD}) == []


@pytest.mark.parametrize("honest", [GOLD, BEFORE])
def test_honest_changes_pass(honest: bytes) -> None:
    assert screen({"m.py": honest}, {"m.py": BEFORE}, {"m.py": GOLD}) == []


def test_new_files_are_screened() -> None:
    assert screen({"new.py": b"import gc\ngc.get_objects()\n"}, {"m.py": BEFORE}) == ["new.py: use of gc.get_objects"]
    assert screen({"m/_speed.so": b"\x7fELF"}, {}) and screen({"m/data.bin": b"PK\x03\x04"}, {})
    assert screen({"m/data.bin": b"anything else"}, {}) == []


STANDARD = """
argparse ast bdb calendar code codecs collections/__init__ configparser contextlib copy dataclasses difflib doctest enum
fractions functools gettext heapq inspect ipaddress logging/__init__ pdb pickle pprint sched shlex statistics string
textwrap threading trace traceback types typing unittest/mock urllib/parse uuid warnings weakref
"""


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.long)])
def test_functions_of_the_standard_library_pass(every: int) -> None:
    """Each function in turn is what a task lacks, and its own code the submission."""
    tried, refused = 0, []
    for name, source in _standard():
        spans = function_spans(source)
        tried += len(spans[::every])
        suspicious = screen({name: source.encode()}, {name: b""})
        for span in spans[::every] if suspicious else ():  # else no part of it is
            start = delete_body(source, span.name)
            refused += screen({name: source.encode()}, {name: start.encode()})
    assert tried > 1500 // every and refused == []


def _standard() -> Iterator[tuple[str, str]]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for name in STANDARD.split():
        yield f"{name}.py", (root / f"{name}.py").read_text("utf-8")


EVIL = "\nimport gc\ngc.get_objects()\n"
CODED = {
    "codec of the submission": b"# coding: mine\n" + EVIL.encode(),
    "rot13": b"# coding: rot13\n" + EVIL.encode(),
    "utf-7": b"# coding: utf-7\n" + b"+AGkAbQBwAG8AcgB0ACAAZwBj-\n",
    "unicode_escape": b"# coding: unicode_escape\n" + b"# \\u000aimport gc\n",
    "raw_unicode_escape": b"#!/usr/bin/python\n# -*- coding: raw-unicode-escape -*-\n# \\u000aimport gc\n",
    "utf-16": EVIL.encode("utf-16"),
    "utf-16 with a line": "# coding: utf-16\n".encode("utf-16-le"),
    "hidden by carriage returns": b"\r# coding: cp1252\r" + EVIL.encode(),
    "after a form feed": b"\f\t# vim: set fileencoding=cp037 :\n" + EVIL.encode(),
    "stateful": b"# coding: hz\n" + EVIL.encode(),
    "null bytes": b"x = 1\n\0" + EVIL.encode(),
    "latin-1": b"# coding: latin-1\n" + EVIL.encode() + b"x = '\xe9'\n",
    "utf-8 with a mark": b"\xef\xbb\xbf" + EVIL.encode(),
    "a name that means utf-8": b"# coding: UTF_8-mine\n" + EVIL.encode(),
    "no coding line but the third": b"#\n#\n# coding: rot13\n" + EVIL.encode(),
    "form feeds": b"\f\n\f" + EVIL.lstrip().encode(),
    "line ends of another kind": EVIL.replace("\n", "\r").encode(),
    "too deep": b"x = " + b"-" * 20_000 + b"1" + EVIL.encode(),
    "brackets": b"x = " + b"(" * 150 + b"1" + b")" * 150 + b"\nx" + b".a" * 5_000 + EVIL.encode(),
    "long": b"y = 0" + b" + 1" * 20_000 + EVIL.encode(),
}


@pytest.mark.parametrize("kind", CODED)
def test_no_way_of_writing_a_file_gets_round_the_screen(kind: str) -> None:
    assert screen({"m.py": CODED[kind]}, {"m.py": BEFORE}, {"m.py": GOLD})


def test_plain_encodings_and_those_of_the_given_file_pass() -> None:
    for line in (b"# coding: utf-8\n", b"# -*- coding: latin-1 -*-\n", b"#!/bin/sh\n# vim: fileencoding=ascii\n"):
        assert screen({"m.py": line + GOLD}, {"m.py": BEFORE}) == []
    given = b"# coding: cp1252\nx = '\x80'\n"
    assert screen({"m.py": given + b"y = 1\n"}, {"m.py": given}) == []
    assert screen({"m.py": given}, {"m.py": BEFORE}) == ["m.py: declares the encoding 'cp1252'; write it in UTF-8"]
    assert screen({"m.py": b"x = 1\n# coding: rot13\n"}, {}) == []  # the first line is code: no coding line


def test_what_this_interpreter_cannot_parse_is_named() -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    (entry,) = screen({"m.py": b"not python ("}, {"m.py": b"neither ("})
    assert entry.startswith(f"m.py: cannot be parsed by Python {version}: ")
    assert elsewhere({"m.py": b"not python (", "n.py": b"\0", "o.py": b"x = 1", "p.txt": b"("}) == ["m.py"]

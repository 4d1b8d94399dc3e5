"""The test program inside every study: plain, short, the same everywhere, so that a policy may read it."""

from __future__ import annotations

RUN_TESTS = '''"""Run the cases of every module: print PASS and their number, or the first failure."""
import json
import signal
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, '')


class Timeout(BaseException):
    pass


def stop(signum, frame):
    raise Timeout


def clip(text, width):
    return text if len(text) <= width else text[:width - 2] + '..'


def main():
    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.3, 0.1)
    with open('cases.json') as file:
        modules = json.load(file)
    passed = 0
    for module, function, cases in modules:
        for args, want in cases:
            call = function + '(' + ', '.join(map(repr, args)) + ')'
            try:
                got = getattr(__import__(module), function)(*args)
                good = got == want and type(got) is type(want)
                shown = repr(got)
            except BaseException as error:
                good = False
                shown = type(error).__name__
            if not good:
                print('FAIL ' + module)
                print(clip(call, 44))
                print('want ' + clip(repr(want), 28))
                print('got ' + clip(shown, 28))
                return 1
            passed += 1
    print('PASS', passed)
    return 0


sys.exit(main())
'''

"""Whether this machine can run a guest's instructions itself."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def can_virtualise() -> bool:
    """The processor has VT-x or AMD-V and ``/dev/kvm`` is ours to use.

    The device alone says nothing: some nested hosts have one that runs ordinary kernels in an interpreter, or not at
    all. What a guest's first boot shows decides in the end.
    """
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return bool(flags and {"vmx", "svm"} & set(flags.group(1).split())) and os.access("/dev/kvm", os.R_OK | os.W_OK)

"""Boxes with a Linux kernel of their own in a virtual machine (QEMU): forks of memory share what they do not change."""

"""Boxes with a Linux kernel of their own in a virtual machine (QEMU); forks share unchanged memory. Optional."""

"""Boxes with a kernel of their own in user space: snapshots and forks of memory and processes, without KVM."""

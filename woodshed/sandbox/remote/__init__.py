"""Boxes on other hosts: the box server (``woodshed boxes``), its client, and placement over several hosts."""

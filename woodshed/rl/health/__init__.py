"""Health of a run: measurements of every step (``measure``), alarms over the history of steps (``alarms``), and the
watch that evaluates them (``watch``)."""

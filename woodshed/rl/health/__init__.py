"""Health of a run: what every step measures (``measure``), alarms over the history of steps (``alarms``), the watch."""

"""Work with existing tasks: difficulty, refresh, statistics, description, export and import."""

"""The engines that ``benchmarks/engine.py`` measures beside the built-in one."""

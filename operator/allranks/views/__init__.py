"""Views of jobs, sweeps and runs, for people and programs: texts, tables, reports, the
live view. No I/O except of run directories and terminals."""

"""Views of jobs, sweeps and runs, for people and programs: texts, tables, reports. No I/O except of run directories."""

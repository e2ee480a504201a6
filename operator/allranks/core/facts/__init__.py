"""What is observed and what a job says: types, names, sizes, pod templates, the counts of a status. Decides nothing."""

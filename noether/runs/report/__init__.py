"""The report page of a run, with its tables, charts and pictures, made from the files in the run folder."""

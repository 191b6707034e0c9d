"""The page of a run, its tables, charts and pictures, from the files of its folder."""

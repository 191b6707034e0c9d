"""The processes of a run on this host: started, watched, linked to other hosts, ended."""

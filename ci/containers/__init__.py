"""How the images are made and where: an engine, a base, the wheels, the docker image, Apptainer, the SIF."""

"""Make the images and what they need: an engine, a base, the wheels, the docker image, Apptainer, the SIF."""

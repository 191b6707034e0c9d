"""Making the images: a container engine, a base image, the wheels, the docker image, Apptainer, and the SIF."""

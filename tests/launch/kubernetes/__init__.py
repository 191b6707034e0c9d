"""The manifests of examples/kubernetes: valid, and run as their pods would run."""

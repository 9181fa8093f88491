"""What a browser is shown of the cluster: values in, HTML out."""

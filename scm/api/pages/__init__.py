"""The cluster's web pages: values in, HTML out."""

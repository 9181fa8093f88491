"""Files off the volumes alone: without a control plane, without an agent, writing to no volume."""

"""fedloom: federated learning on clients that differ."""

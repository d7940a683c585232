"""The objects of the Kubernetes API: types, quantities, versions, selectors, feature gates."""

"""Weaker boxes, for hosts that allow no namespaces: Landlock, a system-call filter and limits on a copied folder."""

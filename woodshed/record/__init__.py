"""Records that travel between the planes: Trajectory, Segment, Outcome, Task. Knows nothing of Ray, HTTP or sandboxes."""

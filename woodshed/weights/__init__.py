"""The weight chain: how versions of a policy get from the trainer to everything that samples from it.

A chain is a folder or a bucket of self-describing versions. ``chain.Publisher`` writes it (``background``: while
training goes on), ``follow.Follower`` reads it, ``chain.verify_chain`` checks it. A tensor is bytes with a name, a
dtype and a region: only ``layout`` and ``tensor_parallel`` know about policies.
"""

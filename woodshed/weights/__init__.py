"""The weight chain: how versions of a policy travel from the trainer to everything that samples from it.

A chain is a folder of self-describing versions. ``chain.Publisher`` writes it, ``follow.Follower`` reads it,
``chain.verify_chain`` checks it. Every tensor is bytes with a name, a dtype and a shape: nothing here knows what a
policy is.
"""

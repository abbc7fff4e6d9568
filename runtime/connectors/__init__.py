"""Places that KV comes from and goes to, behind the protocol of `kvproof.runtime.connector`."""

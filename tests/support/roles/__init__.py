"""What each role of `ops/users.acl` does in its work."""

"""What each role of `ops/deploy/users.acl` does in its work."""

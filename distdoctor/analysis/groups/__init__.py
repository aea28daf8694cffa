"""Process groups and meshes: who is in them, and who only thinks so."""

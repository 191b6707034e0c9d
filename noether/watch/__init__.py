"""A local page that follows runs through their folders. No torch here."""

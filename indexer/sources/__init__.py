"""What lies in people's folders: image files, captions files, metadata."""

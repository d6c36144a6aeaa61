"""Collections in an Elasticsearch cluster; needs the extra `elastic`."""

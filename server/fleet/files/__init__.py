"""Files that the servers of one store share: uploads, samples and artefacts, by digest."""

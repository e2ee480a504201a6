"""Convert jobs of other operators into DistributedTrainings. Pure: it reads no files, no cluster and no terminal."""

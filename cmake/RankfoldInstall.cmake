# Headers, libraries and the package files that find_package(rankfold) reads.

# The image, built by BuildKit:   docker buildx bake            for this machine's architecture, into the local images
#                                docker buildx bake release    for amd64 and arm64, for a registry: add --push
# linux/arm64 is UNTESTED: no test of this project has run on such a machine. A build for a foreign architecture runs in
# an emulator, where the compilation of llama.cpp takes an hour or more.

variable "TAG" {
  default = "cfs"
}

group "default" {
  targets = ["local"]
}

group "release" {
  targets = ["all"]
}

target "image" {
  context = "."
  tags    = [TAG]
}

target "local" {
  inherits = ["image"]
  output   = ["type=docker"]
}

target "all" {
  inherits  = ["image"]
  platforms = ["linux/amd64", "linux/arm64"]
}

#include "architectures.hpp"

#include <doctest/doctest.h>

using rankfold::cuda::runs_on;

TEST_CASE("machine code runs on its major version from its minor one on, PTX on everything later") {
  CHECK(runs_on("80", 8, 0));
  CHECK(runs_on("80", 8, 9));
  CHECK(runs_on("80", 9, 0));
  CHECK(runs_on("80", 12, 0));
  CHECK_FALSE(runs_on("80", 7, 5));
  CHECK_FALSE(runs_on("86-real", 8, 0));
  CHECK(runs_on("86-real", 8, 9));
  CHECK_FALSE(runs_on("80-real", 9, 0));
  CHECK(runs_on("80-virtual", 8, 0));
  CHECK(runs_on("80-virtual", 10, 0));
  CHECK_FALSE(runs_on("90-virtual", 8, 0));
}

TEST_CASE("code for one version alone runs on that version") {
  CHECK(runs_on("90a", 9, 0));
  CHECK(runs_on("90a-real", 9, 0));
  CHECK_FALSE(runs_on("90a", 10, 0));
  CHECK_FALSE(runs_on("90a-real", 8, 0));
  CHECK_FALSE(runs_on("100a", 10, 3));
  CHECK(runs_on("100f", 10, 3));
  CHECK_FALSE(runs_on("100f", 12, 0));
}

TEST_CASE("one of several is enough; what says no number refuses nothing") {
  CHECK(runs_on("80,90a-real", 9, 0));
  CHECK(runs_on("80,90a-real", 8, 6));
  CHECK(runs_on("90a-real,80-virtual", 12, 0));
  CHECK_FALSE(runs_on("80-real,90a-real", 12, 0));
  CHECK(runs_on("native", 8, 0));
  CHECK(runs_on("", 8, 0));
}

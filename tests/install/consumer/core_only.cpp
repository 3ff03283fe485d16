// Planning without a device: validation, shapes and errors come from core alone.
#include <rankfold/rankfold.hpp>

#include <cstdio>
#include <cstring>

int main() {
  const rankfold::TableShape shape = {.num_slots = 2, .num_slices = 2, .max_rank = 8, .in = 64, .out = {32, 16}};
  const rankfold::MatrixShape h = h_shape(shape, 5);
  const rankfold::MatrixShape y = y_shape(shape, 5);
  rankfold::TableShape bad = shape;
  bad.max_rank = -1;
  const rankfold::Status status = validate(bad);
  const bool right = h.rows == 5 && h.columns == 16 && y.columns == 48 && validate(shape).ok() &&
                     status.code() == rankfold::StatusCode::invalid_argument &&
                     std::strstr(status.message(), "max_rank") != nullptr;
  std::printf("%s\n%s\n", status.message(), right ? "right" : "WRONG");
  return right ? 0 : 1;
}

#include "adapter/safetensors_header.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "adapter/json_reader.hpp"
#include "adapter/text.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

namespace {

constexpr std::array<FileDType, 22> kFileDTypes = {{
    {"F32", 32, 1, DType::f32},        {"F16", 16, 1, DType::f16},
    {"BF16", 16, 1, DType::bf16},      {"F64", 64, 1, DType::f64},
    {"I32", 32, 1, DType::i32},        {"I64", 64, 1, DType::i64},
    {"BOOL", 8, 0, DType::f32},        {"U8", 8, 0, DType::f32},
    {"I8", 8, 0, DType::f32},          {"I16", 16, 0, DType::f32},
    {"U16", 16, 0, DType::f32},        {"U32", 32, 0, DType::f32},
    {"U64", 64, 0, DType::f32},        {"C64", 64, 0, DType::f32},
    {"F8_E5M2", 8, 0, DType::f32},     {"F8_E4M3", 8, 0, DType::f32},
    {"F8_E8M0", 8, 0, DType::f32},     {"F8_E4M3FNUZ", 8, 0, DType::f32},
    {"F8_E5M2FNUZ", 8, 0, DType::f32}, {"F6_E2M3", 6, 0, DType::f32},
    {"F6_E3M2", 6, 0, DType::f32},     {"F4", 4, 0, DType::f32},
}};

constexpr int kMaxDepth = 3;  // root, tensor, shape

bool multiply(std::uint64_t a, std::uint64_t b, std::uint64_t& product) noexcept {
  return !__builtin_mul_overflow(a, b, &product);
}

class HeaderEvents : public JsonEvents {
 public:
  explicit HeaderEvents(Header& header) : JsonEvents(kMaxDepth), header_(header) {}

  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("a boolean"); }
  bool number_integer(std::int64_t) { return unexpected("a negative number"); }
  bool number_float(double, const std::string&) {
    return unexpected("a fractional or overflowing number");
  }

  bool number_unsigned(std::uint64_t value) {
    if (place_ == Place::shape) return add_size(value);
    if (place_ != Place::offsets) return unexpected("a number");
    if (num_offsets_ == 2) return fail("data_offsets of " + tensor_name() + " are more than two");
    (num_offsets_++ == 0 ? tensor().begin : tensor().end) = value;
    return true;
  }

  bool string(std::string& text) {
    if (place_ == Place::metadata_value) {
      if (text.find('\0') != std::string::npos) return fail("a NUL in a value of __metadata__");
      header_.metadata.back().second = std::move(text);
      place_ = Place::metadata;
      return true;
    }
    if (place_ != Place::dtype) return unexpected("a string");
    tensor().dtype = find_file_dtype(text);
    if (tensor().dtype == nullptr) {
      return fail("unknown dtype " + quote(text) + " of " + tensor_name());
    }
    place_ = Place::tensor;
    return true;
  }

  bool start_object(std::size_t) {
    if (!enter()) return false;
    switch (place_) {
      case Place::start:
        place_ = Place::root;
        return true;
      case Place::tensor_open:
        place_ = Place::tensor;
        return true;
      case Place::metadata_open:
        place_ = Place::metadata;
        return true;
      default:
        return unexpected("an object");
    }
  }

  bool key(std::string& text) {
    if (text.find('\0') != std::string::npos) return fail("a NUL in a name");
    switch (place_) {
      case Place::root:
        return root_key(text);
      case Place::tensor:
        return field(text);
      default:  // only objects have keys, and the only other object is __metadata__
        header_.metadata.emplace_back(std::move(text), std::string());
        place_ = Place::metadata_value;
        return true;
    }
  }

  bool end_object() {
    leave();
    if (place_ == Place::tensor) {
      for (const char* name : {"dtype", "shape", "data_offsets"}) {
        if ((fields_ & bit_of(name)) == 0) {
          return fail(tensor_name() + " has no " + name);
        }
      }
    }
    place_ = depth() == 0 ? Place::end : Place::root;
    return true;
  }

  bool start_array(std::size_t) {
    if (!enter()) return false;
    if (place_ == Place::shape_open) {
      place_ = Place::shape;
      return true;
    }
    if (place_ == Place::offsets_open) {
      place_ = Place::offsets;
      return true;
    }
    return place_ == Place::start ? fail("the header is an array, it must be an object")
                                  : unexpected("an array");
  }

  bool end_array() {
    leave();
    if (place_ == Place::offsets && num_offsets_ != 2) {
      return fail("data_offsets of " + tensor_name() + " are fewer than two");
    }
    place_ = Place::tensor;
    return true;
  }

 private:
  enum class Place {
    start,
    root,
    tensor_open,
    tensor,
    dtype,
    shape_open,
    shape,
    offsets_open,
    offsets,
    metadata_open,
    metadata,
    metadata_value,
    end
  };

  HeaderTensor& tensor() { return header_.tensors.back(); }
  std::string tensor_name() { return "tensor " + quote(tensor().name); }

  static unsigned bit_of(std::string_view field) noexcept {
    if (field == "dtype") return 1;
    if (field == "shape") return 2;
    return field == "data_offsets" ? 4 : 0;
  }

  bool root_key(std::string& name) {
    if (name == "__metadata__") {
      if (has_metadata_) return fail("__metadata__ appears twice");
      has_metadata_ = true;
      place_ = Place::metadata_open;
      return true;
    }
    header_.tensors.emplace_back().name = std::move(name);
    fields_ = 0;
    num_offsets_ = 0;
    place_ = Place::tensor_open;
    return true;
  }

  bool field(const std::string& name) {
    const unsigned bit = bit_of(name);
    if (bit == 0) return fail("unknown field " + quote(name) + " of " + tensor_name());
    if ((fields_ & bit) != 0) return fail("field " + name + " of " + tensor_name() + " twice");
    fields_ |= bit;
    place_ = bit == 1 ? Place::dtype : bit == 2 ? Place::shape_open : Place::offsets_open;
    return true;
  }

  bool add_size(std::uint64_t size) {
    if (tensor().num_dims == kSafetensorsMaxDims) {
      return fail(tensor_name() + " has more than " + std::to_string(kSafetensorsMaxDims) +
                  " dimensions");
    }
    if (size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return fail("a size of " + tensor_name() + " overflows: " + std::to_string(size));
    }
    tensor().sizes[tensor().num_dims++] = static_cast<std::int64_t>(size);
    return true;
  }

  bool unexpected(const char* what) {
    switch (place_) {
      case Place::start:
      case Place::end:
        return fail(std::string("the header is ") + what + ", it must be an object");
      case Place::metadata_open:
        return fail(std::string("__metadata__ is ") + what + ", it must be an object");
      case Place::metadata_value:
        return fail("__metadata__ " + quote(header_.metadata.back().first) + " is " + what +
                    ", it must be a string");
      case Place::dtype:
        return fail("dtype of " + tensor_name() + " is " + what + ", it must be a string");
      case Place::shape_open:
      case Place::offsets_open:
        return fail((place_ == Place::shape_open ? "shape of " : "data_offsets of ") +
                    tensor_name() + " is " + what + ", it must be an array");
      case Place::shape:
      case Place::offsets:
        return fail(std::string(what) + " in " +
                    (place_ == Place::shape ? "the shape of " : "data_offsets of ") +
                    tensor_name() + ", only unsigned integers are legal there");
      default:
        return fail(tensor_name() + " is " + what + ", it must be an object");
    }
  }

  Header& header_;
  Place place_ = Place::start;
  unsigned fields_ = 0;
  int num_offsets_ = 0;
  bool has_metadata_ = false;
};

// Duplicates by sorting: a hash table could be made to collide by the file.
Status check_names(const Header& header) {
  std::vector<std::string_view> names;
  for (const HeaderTensor& tensor : header.tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  if (auto twin = std::adjacent_find(names.begin(), names.end()); twin != names.end()) {
    return Status(StatusCode::malformed_file, "tensor " + quote(*twin) + " appears twice");
  }
  names.clear();
  for (const auto& [key, value] : header.metadata) names.push_back(key);
  std::sort(names.begin(), names.end());
  if (auto twin = std::adjacent_find(names.begin(), names.end()); twin != names.end()) {
    return Status(StatusCode::malformed_file,
                  "key " + quote(*twin) + " of __metadata__ appears twice");
  }
  return {};
}

// Sorted by offset, every byte of the data belongs to one tensor.
Status check_layout(const Header& header, std::uint64_t data_bytes) {
  std::uint64_t position = 0;
  for (const HeaderTensor& tensor : header.tensors) {
    const std::string name = "tensor " + quote(tensor.name);
    const std::string offsets =
        "[" + std::to_string(tensor.begin) + ", " + std::to_string(tensor.end) + "]";
    if (tensor.end < tensor.begin || tensor.end > data_bytes) {
      return Status(StatusCode::malformed_file, "data_offsets " + offsets + " of " + name +
                                                    " do not fit into " +
                                                    std::to_string(data_bytes) + " bytes of data");
    }
    const auto bytes = bytes_of(*tensor.dtype, tensor.sizes, tensor.num_dims);
    if (!bytes) return Status(StatusCode::malformed_file, name + ": " + bytes.status().message());
    if (*bytes != tensor.end - tensor.begin) {
      return Status(StatusCode::malformed_file,
                    name + " of shape " + shape_text(tensor.sizes, tensor.num_dims) +
                        " and dtype " + tensor.dtype->name + " needs " + std::to_string(*bytes) +
                        " bytes, data_offsets " + offsets + " give it " +
                        std::to_string(tensor.end - tensor.begin));
    }
    if (tensor.begin != position) {
      return Status(StatusCode::malformed_file,
                    std::string(tensor.begin < position ? "an overlap" : "a hole") + " before " +
                        name + ": its data begins at " + std::to_string(tensor.begin) +
                        ", the data before it ends at " + std::to_string(position));
    }
    position = tensor.end;
  }
  if (position != data_bytes) {
    return Status::format(StatusCode::malformed_file, "%llu trailing bytes belong to no tensor",
                          static_cast<unsigned long long>(data_bytes - position));
  }
  return {};
}

}  // namespace

const FileDType* find_file_dtype(std::string_view name) noexcept {
  const auto found = std::find_if(kFileDTypes.begin(), kFileDTypes.end(),
                                  [name](const FileDType& dtype) { return name == dtype.name; });
  return found == kFileDTypes.end() ? nullptr : &*found;
}

Result<std::uint64_t> bytes_of(const FileDType& dtype, const std::int64_t* sizes, int num_dims) {
  std::uint64_t product = 1;  // of what is not zero
  bool empty = false;
  for (int i = 0; i < num_dims; ++i) {
    const auto size = static_cast<std::uint64_t>(sizes[i]);
    if (size == 0) {
      empty = true;
    } else if (!multiply(product, size, product)) {
      return Status(StatusCode::malformed_file,
                    "the shape " + shape_text(sizes, num_dims) + " overflows");
    }
  }
  std::uint64_t bits = 0;
  if (!multiply(product, dtype.bits, bits)) {
    return Status(StatusCode::malformed_file,
                  "the bytes of shape " + shape_text(sizes, num_dims) + " overflow");
  }
  if (empty) return std::uint64_t{0};
  if (bits % 8 != 0) {
    return Status(StatusCode::malformed_file, "the shape " + shape_text(sizes, num_dims) +
                                                  " of dtype " + dtype.name +
                                                  " is not a whole number of bytes");
  }
  return bits / 8;
}

Result<Header> parse_header(std::string_view json, std::uint64_t data_bytes) {
  if (json.empty() || json.front() != '{') {
    return Status(StatusCode::malformed_file, "the header must be a JSON object and begin with {");
  }
  Header header;
  HeaderEvents events(header);
  if (Status status = parse_json(json, events); !status.ok()) return status;
  if (Status status = check_names(header); !status.ok()) return status;
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const HeaderTensor& a, const HeaderTensor& b) {
                     return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                   });
  if (Status status = check_layout(header, data_bytes); !status.ok()) return status;
  return header;
}

}  // namespace detail
RANKFOLD_NAMESPACE_END

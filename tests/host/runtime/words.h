// Words that tell tcgen05's instructions where operands are and what a product is, taken apart as the PTX ISA 9.0 says (9.7.16.4,
// "Shared Memory Descriptor" and "Instruction Descriptor"). It knows nothing of what wrote them.
#pragma once

#include <cstdint>
#include <string>

namespace host {

// So many bits of a word, from one on.
inline std::uint32_t bits(const std::uint64_t word, const std::uint32_t from, const std::uint32_t count) {
    return std::uint32_t(word >> from & ((std::uint64_t(1) << count) - 1));
}

// A matrix in shared memory whose rows are along the multiplied columns, in groups of eight.
struct OperandWord {
    std::uint32_t start;       // lowest 18 bits of its address
    std::uint32_t stride;      // bytes from eight rows to the next eight
    std::uint32_t row_bytes;   // of a row of a group: 128, 64 or 32
    std::string wrong;         // what is not as the manual says, or is not modelled; nothing if all is well

    // Where 16 bytes lie that begin at `byte` of a row, as an offset from where all addresses begin with the same 18 bits. Units of
    // 16 bytes change places by bits of their address from 128 on.
    std::uint64_t at(std::uint64_t first, std::uint32_t row, std::uint32_t byte) const;
};
OperandWord operand_word(std::uint64_t word);

enum class ElementType { Fp16, Bf16, E4m3, E2m1 };
// By what name an instruction has its kind.
enum class ProductKind { F16, F8f6f4 };

struct ProductWord {
    std::uint32_t rows, columns;
    ElementType left, right;
    std::string wrong;
};
// Of an instruction for a group of so many blocks.
ProductWord product_word(ProductKind kind, std::uint32_t word, std::uint32_t group);

}  // namespace host

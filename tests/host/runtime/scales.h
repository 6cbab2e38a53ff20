// Scales of blocks: words that say where they are in shared memory and which of them a product takes, and where they lie in tensor
// memory, taken apart as the PTX ISA 9.0 says (9.7.16.4.2, "Instruction Descriptor"; 9.7.16.10.7, "Block Scaling"). It knows nothing of
// what wrote them.
#pragma once

#include <cstdint>
#include <string>

namespace host {

// 32 rows of 16 bytes in shared memory, in groups of eight, as tcgen05.cp takes them.
struct CopyWord {
    std::uint32_t start;   // lowest 18 bits of its address
    std::uint32_t stride;  // bytes from eight rows to the next eight
    std::string wrong;     // what is not as the manual says, or is not modelled; nothing if all is well

    // Where a row is, from where all addresses begin with the same 18 bits.
    std::uint32_t row(std::uint32_t number) const { return start + number / 8 * stride + number % 8 * 16; }
};
CopyWord copy_word(std::uint64_t word);

// By what name an instruction has its kind.
enum class ScaledKind { Mxf8f6f4, Mxf4nvf4 };

// A product with scales, and the bytes of words in which those of either operand are: `each` of a row, from one byte on.
struct ScaledWord {
    std::uint32_t rows, columns, left_byte, right_byte, each;
    std::string wrong;
};
ScaledWord scaled_word(ScaledKind kind, std::uint32_t word);

// Where the word of a row's scales is, as lane and column from the first column on. Each 32 lanes have the same.
struct ScalePlace {
    std::uint32_t lane, column;
};
ScalePlace scale_place(std::uint32_t row);

// The value of byte `byte` of a word: ue8m0 or ue4m3, by the kind.
float scale_of(ScaledKind kind, std::uint32_t word, std::uint32_t byte);

// The value of the lower four bits, as e2m1.
float e2m1_to(std::uint32_t bits);

}  // namespace host

package xxh3

import "testing"

// vectors were made with the Java library that Kafka uses, of bytes i*31 + 7*(i>>8) + 1.
var vectors = []struct {
	size int
	hash uint64
}{
	{0, 0x2d06800538d394c2},
	{1, 0xe12ef9d2eb86ceeb},
	{2, 0x9ed28877ed1f9bac},
	{3, 0x4ff10c4faac80e8},
	{4, 0x840602a3a28eb47},
	{5, 0xc8a5e5dda8d17143},
	{7, 0x9361ba5aeb7d06ed},
	{8, 0x4929784fb2e7a9af},
	{9, 0x3abfdb8ba2956065},
	{12, 0x47c0e39510cf5b10},
	{15, 0x137d165f5863a11e},
	{16, 0x8a9efe7e6639609b},
	{17, 0xb3208c4ec19e15c1},
	{31, 0xe400156b41cca538},
	{32, 0x6a8fc88d916579f2},
	{33, 0x9c14e5a420d93da3},
	{63, 0xf1b48eb6a3d7bab1},
	{64, 0x97257b521d434fbc},
	{65, 0xad27c5cb5aad6fa9},
	{96, 0x1e62f396f93d415b},
	{97, 0xf3ad615ca8b8670d},
	{127, 0xfb57f357d18ba967},
	{128, 0x7e40a7b99f8620f0},
	{129, 0xa7b8871a67ac5a75},
	{130, 0x3544a5c32a589d71},
	{159, 0x32a3ddabcf285e1c},
	{160, 0xdf57169b80f97c66},
	{161, 0x8d002a9ab18810f6},
	{200, 0x11eec14a4209fe6},
	{239, 0xfc6f1775130100c5},
	{240, 0xddb20331351bbc7c},
	{241, 0x3bc6fa347f0cfaff},
	{255, 0x89ae76eaf707e5eb},
	{256, 0xe2ce9102cdf90723},
	{257, 0x99f45763ee9a6b90},
	{512, 0x6a48a302eb1cb682},
	{1023, 0xe4b3f501fc7bda57},
	{1024, 0x378dd4537ffb8737},
	{1025, 0x7161602ea1b4b0c3},
	{1088, 0xa9ff935d79c2c47d},
	{1089, 0x37693e30eabaf3ad},
	{2047, 0xc2ad069902a1f45f},
	{2048, 0xc36bc039a08f06a5},
	{2049, 0xa5073ad6a60ec681},
	{4000, 0x39ef0bc6ae8bdff1},
	{10000, 0xaecb808019d51da9},
}

func input(size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i*31 + 7*(i>>8) + 1)
	}
	return b
}

func TestVectors(t *testing.T) {
	for _, v := range vectors {
		if got := Sum64(input(v.size)); got != v.hash {
			t.Errorf("hash of %d bytes is %#x, want %#x", v.size, got, v.hash)
		}
	}
}

// Every bit counts.
func TestBits(t *testing.T) {
	for _, size := range []int{1, 3, 8, 16, 100, 200, 300, 1500} {
		b := input(size)
		seen := map[uint64]int{Sum64(b): -1}
		for i := range b {
			b[i] ^= 1
			h := Sum64(b)
			if j, ok := seen[h]; ok {
				t.Fatalf("%d bytes: changing byte %d gives the same as changing byte %d", size, i, j)
			}
			seen[h] = i
			b[i] ^= 1
		}
	}
}

func BenchmarkSum64(b *testing.B) {
	in := input(1 << 10)
	b.SetBytes(int64(len(in)))
	for b.Loop() {
		Sum64(in)
	}
}

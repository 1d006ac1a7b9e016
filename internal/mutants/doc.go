// Package mutants breaks rules of the code on purpose, one at a time, so that simulations can show that they notice. It is for tests
// alone.
//
// All mutants of a simulation are built into one test binary, from sources that are changed on the way (go test -overlay). Which one
// runs is told by the environment. The binary's test TestMutant runs seeds until one catches the mutant and then logs "caught by".
package mutants

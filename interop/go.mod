module gregor/interop

go 1.26.0

require gregor v0.0.0

replace gregor => ../

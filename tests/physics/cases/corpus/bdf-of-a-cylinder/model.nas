SOL 101
CEND
BEGIN BULK
CORD2C  1               0.      0.      0.      0.      0.      1.
        1.      0.      0.
GRID    1       1       1.0     0.0     0.0
GRID    2       1       2.0     0.0     0.0
GRID    3       1       2.0     90.0    0.0
GRID    4       1       1.0     90.0    0.0
CQUAD4  1       7       1       2       3       4
ENDDATA
